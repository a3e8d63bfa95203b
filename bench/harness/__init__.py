"""What the benches share: servers, clients and a peer to measure, and how figures are reported."""
