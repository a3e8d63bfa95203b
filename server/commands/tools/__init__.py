"""Which tools an answer offers, and the words of users on calls that wait for them."""
