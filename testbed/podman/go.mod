module insula/testbed/podman

go 1.19

require github.com/containers/podman/v4 v4.3.1
