"""OAUTHBEARER: signed tokens (JWT) as logins; pure cores, and the keys that are kept fresh."""
