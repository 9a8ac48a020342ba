"""Bundle methods: cutting-plane models of the risk and the master problems that minimize them."""
