"""What must survive: runs, Tasks, budgets and the inbox, with worker, leases, journal and stores."""
