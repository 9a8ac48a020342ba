"""What is sent between coordinator and owners: messages, operations, TLS certificates."""
