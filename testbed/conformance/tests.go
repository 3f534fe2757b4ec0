//go:build tests

// Package conformance has go.mod name the modules of which the tests are built.
package conformance

import (
	_ "github.com/opencontainers/runtime-tools/cmd/runtimetest"
	_ "github.com/opencontainers/runtime-tools/validation/default"
	_ "github.com/opencontainers/runtime-tools/validation/util"
)
