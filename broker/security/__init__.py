"""Who a client is: principals, and SASL of the listeners."""
