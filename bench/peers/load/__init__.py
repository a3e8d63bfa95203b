"""What the servers are asked, and the ways into them."""
