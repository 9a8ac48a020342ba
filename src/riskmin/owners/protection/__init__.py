"""What an owner refuses, rounds, masks and records."""
