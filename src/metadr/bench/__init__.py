"""Speed, measured in one run beside what users could pick instead."""
