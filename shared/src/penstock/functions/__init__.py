"""What users write as classes: process functions, window functions and triggers, with what they are given."""
