"""`invoke bench`: load on the host, other releases for a while, and always the way back."""
