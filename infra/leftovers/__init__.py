"""What a destroyed stack left in the account: listed by `python -m infra.leftovers --stack NAME`, never deleted."""
