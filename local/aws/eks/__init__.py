"""EKS: clusters with their own control planes, node groups of EC2 instances, access entries, add-ons.

moto's EKS only stores records, and lacks add-ons, access entries, updates and versions. This package replaces it in the
server (`responses.install`), and keeps its own state (`store`).
"""
