"""What every service process needs: its HTTP server, limits, access, the way it ends."""
