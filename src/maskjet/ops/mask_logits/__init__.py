"""The last step of a mask head: products of queries and pixels."""
