"""Transactions in one partition: what readers may see, and whom the coordinator knows."""
