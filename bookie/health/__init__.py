"""Damage: found, told, and what can be made anew from what is left."""
