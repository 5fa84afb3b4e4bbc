"""`quire locks`: whether a topic's records with optimistic locks were rightly accepted."""
