# A program of C, of all sources in the folder.
OBJECTS := $(sort $(patsubst %.c,%.o,$(wildcard *.c)))

program: $(OBJECTS)
	@$(CC) -o $@ $^

%.o: %.c
	@$(CC) -O1 -c -o $@ $<
