"""What templates show: plain data with the numbers already in words, units and sensible digits."""
