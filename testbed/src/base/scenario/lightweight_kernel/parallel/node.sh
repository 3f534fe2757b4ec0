# Worker threads of node.js.
exec node workers.js "$1"
