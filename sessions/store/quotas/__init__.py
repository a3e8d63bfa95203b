"""What users and groups may still have: tokens of the day, answers at a time."""
