"""What every room uses: times, decimals, batches of rows, names, checks of arguments, scratch files."""
