"""SASL of the listeners: the exchange in front of dispatch, and its mechanisms."""
