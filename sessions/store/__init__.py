"""`SessionStore` and the parts that it is made of."""
