"""What each step costs, after a check that it is right."""
