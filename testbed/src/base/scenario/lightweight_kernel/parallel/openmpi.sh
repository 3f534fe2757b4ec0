# Three processes of Open MPI.
mpicc.openmpi -O1 -o exchange exchange.c
mpirun.openmpi --allow-run-as-root --oversubscribe -n 3 ./exchange "$1"
