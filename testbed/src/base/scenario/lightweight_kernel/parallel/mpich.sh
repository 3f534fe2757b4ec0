# Three processes of MPICH.
mpicc.mpich -O1 -o exchange exchange.c
mpirun.mpich -n 3 ./exchange "$1"
