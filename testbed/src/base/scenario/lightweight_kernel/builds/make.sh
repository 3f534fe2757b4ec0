# make compiles $1 files of C, three at a time, and links them.
for file in $(seq "$1"); do
	cat > "part$file.c" << END
#include <stdlib.h>
#include <string.h>

static int numbers[64];

static int compare(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(int));
}

int part$file(int seed)
{
	for (int i = 0; i < 64; i++)
		numbers[i] = seed * i ^ $file;
	qsort(numbers, 64, sizeof(int), compare);
	return numbers[seed & 63];
}
END
done
{
	echo '#include <stdio.h>'
	printf 'int part%d(int);\n' $(seq "$1")
	echo 'int main(void) { long sum = 0;'
	printf 'sum += part%d(31);\n' $(seq "$1")
	printf 'printf("%%ld\\n", sum); }\n'
} > main.c
make --jobs 3
./program
sha256sum ./*.o program
