"""What the console costs the server: each of its views among a million sessions."""
