"""Wire formats of model services, each behind the `Provider` seam, and the offline `embedded` one."""
