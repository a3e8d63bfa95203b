"""What each kind of engine at an address calls what we ask, and how it says what it has done."""
