"""Rules for every stack, whatever its stack file says. `evaluate.py` checks a stored preview or state; `__main__.py`
runs the rules in the Pulumi engine as a policy pack. The rules themselves need neither Pulumi nor an AWS account.
"""
