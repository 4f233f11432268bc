"""Prints how often each operation was answered with which status. Each must have succeeded."""

import json
import sys

with open(sys.argv[1]) as file:
    counts = json.load(file)
print(f"{'operation':<16} {'2xx':>6}  all")
without = []
total = good = 0
for operation, statuses in counts.items():
    successes = sum(count for status, count in statuses.items() if status.startswith("2"))
    listed = ", ".join(f"{status}: {count}" for status, count in statuses.items())
    print(f"{operation:<16} {successes:>6}  {listed}")
    total += sum(statuses.values())
    good += successes
    if successes == 0:
        without.append(operation)
print(f"{total} requests, {good} of them answered with 2xx")
if without:
    sys.exit(f"never answered with 2xx: {', '.join(without)}")
