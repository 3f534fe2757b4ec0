// Threads write a mapped file, which is then read as a file.
import java.nio.channels.FileChannel;
import java.nio.channels.FileChannel.MapMode;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.zip.CRC32;

public class Writers {
    private static final int THREADS = 3;

    public static void main(String[] arguments) throws Exception {
        int size = 1024 * Integer.parseInt(arguments[0]);
        Path path = Path.of("file");
        try (FileChannel file = FileChannel.open(path, StandardOpenOption.CREATE_NEW,
                StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            var memory = file.map(MapMode.READ_WRITE, 0, size);
            var threads = new ArrayList<Thread>();
            for (int first = 0; first < THREADS; first++) {
                int start = first;
                threads.add(new Thread(() -> {
                    for (int at = start; at < size; at += THREADS)
                        memory.put(at, (byte) (at * 7 + at / 1000));
                }));
            }
            for (Thread thread : threads) thread.start();
            for (Thread thread : threads) thread.join();
        }
        var sum = new CRC32();
        sum.update(Files.readAllBytes(path));
        System.out.println(Files.size(path) + " " + sum.getValue());
    }
}
