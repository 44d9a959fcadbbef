"""Find what a destroyed stack left in the account: `python -m trainyard.preflight.leftovers --stack NAME`."""
