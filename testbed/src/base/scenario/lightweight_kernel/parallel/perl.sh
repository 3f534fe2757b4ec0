# Perl with $1 children.
exec perl children.pl "$1"
