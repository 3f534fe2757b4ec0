/* A ring in which each process adds its rank to a token, and sums over all of arrays. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, size;

static void pass(int rounds)
{
	int token = 0, next = (rank + 1) % size, previous = (rank + size - 1) % size;

	for (int round = 0; round < rounds; round++) {
		if (rank)
			MPI_Recv(&token, 1, MPI_INT, previous, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		token += rank;
		MPI_Send(&token, 1, MPI_INT, next, 0, MPI_COMM_WORLD);
		if (!rank)
			MPI_Recv(&token, 1, MPI_INT, previous, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	}
	if (!rank)
		printf("ring: %d\n", token);
}

static void sum(int count)
{
	long *given = malloc(count * sizeof(long)), *sums = malloc(count * sizeof(long)), right = 0;

	for (int i = 0; i < count; i++)
		given[i] = (rank + 1L) * i;
	MPI_Allreduce(given, sums, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < count; i++)
		right += sums[i] == size * (size + 1L) / 2 * i;
	MPI_Reduce(rank ? &right : MPI_IN_PLACE, &right, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	if (!rank)
		printf("%d sums: %ld are right\n", count, right);
	free(given);
	free(sums);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	pass(atoi(argv[1]));
	/* From what fits into a cell of shared memory to what is copied between processes. */
	for (int count = 1; count <= 1 << 16; count *= 16)
		sum(count);
	MPI_Finalize();
	return 0;
}
