# Forks children that all live at the same time, and reaps each with its own status.
use strict;
use warnings;

my $count = shift;
my %number_of;
pipe(my $read, my $write) or die "pipe: $!";
for my $number (1 .. $count) {
    my $pid = fork;
    die "fork $number: $!" unless defined $pid;
    if ($pid == 0) {
        # Until the parent, which has forked them all, closes the pipe.
        close $write;
        sysread($read, my $end, 1);
        exit($number % 251);
    }
    $number_of{$pid} = $number;
}
close $write;
my ($reaped, $right) = (0, 0);
while ((my $pid = wait) > 0) {
    $reaped++;
    $right++ if $? == $number_of{$pid} % 251 << 8;
}
print "$reaped reaped, $right with the right status\n";
