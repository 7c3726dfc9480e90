"""What is proven of a problem before anything is released."""
