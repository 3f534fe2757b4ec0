# Threads of Java. Only the simple compiler, as the other would take most of the time.
exec java -XX:TieredStopAtLevel=1 Writers.java "$1"
