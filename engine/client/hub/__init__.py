"""What the hub says of a repository before anything of it is downloaded."""
