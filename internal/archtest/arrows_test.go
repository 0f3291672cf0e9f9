package archtest

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

const modulePath = "github.com/caddy-tollgate/ratelimit"

// place is one package, by its folder, and what its code may import. Test files
// are free: a backend's tests may compare it with another backend.
type place struct {
	own     []string // folders of this project
	foreign bool     // also other modules; the standard library always may
}

// places lists every package of the project. Those that are not written yet
// are in it too, so that they start out in their place.
var places = map[string]place{
	"policy": {},
	"lua":    {},

	"memorybackend":   {own: []string{"policy", "internal/metrics"}, foreign: true},
	"redisbackend":    {own: []string{"policy", "lua", "internal/metrics", "internal/block"}, foreign: true},
	"policy/static":   {own: []string{"policy", "internal/metrics"}, foreign: true},
	"policy/embedded": {own: []string{"policy", "internal/metrics", "internal/block"}, foreign: true},
	"policy/postgres": {own: []string{"policy", "internal/metrics", "internal/block"}, foreign: true},
	"admin":           {own: []string{"policy"}, foreign: true},

	".": {own: []string{
		"policy", "policy/static", "policy/embedded", "policy/postgres",
		"memorybackend", "redisbackend", "admin", "internal/jwtauth", "internal/metrics", "internal/topk",
	}, foreign: true},

	"cmd/caddy":        {own: []string{"."}, foreign: true},
	"cmd/bench":        {own: []string{"policy", "redisbackend", "internal/testserver"}, foreign: true},
	"cmd/loadtest":     {own: []string{"internal/testserver"}, foreign: true},
	"cmd/faults":       {own: []string{"internal/testserver"}, foreign: true},
	"integration_test": {own: []string{".", "policy", "internal/testserver"}, foreign: true},

	"internal/archtest":    {},
	"internal/jwtauth":     {foreign: true},
	"internal/metrics":     {foreign: true},
	"internal/block":       {foreign: true},
	"internal/topk":        {},
	"internal/conformance": {own: []string{"policy"}, foreign: true},
	"internal/storetest":   {own: []string{"policy"}, foreign: true},
	"internal/testserver":  {foreign: true},
}

func TestPackagesImportOnlyWhatTheirPlaceAllows(t *testing.T) {
	root := os.DirFS("../..")
	gomod, err := fs.ReadFile(root, "go.mod")
	if err != nil || !strings.HasPrefix(string(gomod), "module "+modulePath+"\n") {
		t.Fatalf("../.. is not the root of module %s: %v", modulePath, err)
	}
	imports, err := readImports(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(imports["policy"]) == 0 || len(imports["cmd/caddy"]) == 0 {
		t.Fatalf("the packages policy and cmd/caddy were not found in %d packages: nothing was checked", len(imports))
	}
	for _, v := range violations(imports) {
		t.Error(v)
	}
}

func TestAWrongArrowIsReported(t *testing.T) {
	const own = modulePath + "/"
	tests := map[string]struct {
		file, imports string
		want          string // part of the one violation; empty if there is none
	}{
		"the vocabulary imports another module":       {"policy/a.go", `"go.uber.org/zap"`, "policy/a.go imports go.uber.org/zap"},
		"the vocabulary imports the root":             {"policy/a.go", `"` + modulePath + `"`, "policy/a.go imports the root package"},
		"a script package imports the vocabulary":     {"lua/a.go", `"` + own + `policy"`, "lua/a.go imports policy"},
		"a backend imports its sibling":               {"redisbackend/a.go", `"` + own + `memorybackend"`, "redisbackend/a.go imports memorybackend"},
		"a provider imports its sibling":              {"policy/postgres/a.go", `"` + own + `policy/static"`, "policy/postgres/a.go imports policy/static"},
		"a backend imports the root":                  {"memorybackend/a.go", `"` + modulePath + `"`, "memorybackend/a.go imports the root package"},
		"the admin API imports a provider":            {"admin/a.go", `"` + own + `policy/embedded"`, "admin/a.go imports policy/embedded"},
		"the root imports what only tests need":       {"a.go", `"` + own + `internal/testserver"`, "a.go imports internal/testserver"},
		"a file that a build tag leaves out":          {"policy/a_windows.go", `"go.uber.org/zap"`, "policy/a_windows.go imports"},
		"a renamed import":                            {"policy/a.go", `z "go.uber.org/zap"`, "policy/a.go imports"},
		"a package without a place":                   {"stray/a.go", `"fmt"`, "package stray has no place yet"},
		"a package without a place or an import":      {"stray/a.go", "", "package stray has no place yet"},
		"a package without a place, only tests in it": {"stray/a_test.go", `"fmt"`, "package stray has no place yet"},

		"the vocabulary imports the standard library": {"policy/a.go", `"encoding/json"`, ""},
		"a backend imports the vocabulary":            {"memorybackend/a.go", `"` + own + `policy"`, ""},
		"the Redis backend imports its scripts":       {"redisbackend/a.go", `"` + own + `lua"`, ""},
		"a backend imports another module":            {"redisbackend/a.go", `"github.com/redis/go-redis/v9"`, ""},
		"the root imports a backend":                  {"a.go", `"` + own + `redisbackend"`, ""},
		"a test imports what it likes":                {"policy/a_test.go", `"pgregory.net/rapid"`, ""},
		"a folder that go leaves out":                 {"policy/testdata/a.go", `"go.uber.org/zap"`, ""},
		"a module of its own":                         {"tools/a.go", `"go.uber.org/zap"`, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			imports, err := readImports(fstest.MapFS{
				"go.mod":       {Data: []byte("module " + modulePath)},
				"tools/go.mod": {Data: []byte("module " + own + "tools")},
				tt.file:        {Data: []byte("package a\nimport (\n" + tt.imports + "\n)\n")},
			})
			if err != nil {
				t.Fatal(err)
			}
			got := violations(imports)
			if tt.want == "" && len(got) != 0 || tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)) {
				t.Errorf("got violations %q; want one with %q", got, tt.want)
			}
		})
	}
}

// imported is one import of one file.
type imported struct{ file, path string }

// readImports returns what the packages of the module in fsys import, by
// folder, whatever build tags stand above a file. A folder that has only tests
// is in it, with no imports.
func readImports(fsys fs.FS) (map[string][]imported, error) {
	found := make(map[string][]imported)
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && leftOut(fsys, name):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		imports, err := fileImports(fsys, name)
		found[path.Dir(name)] = append(found[path.Dir(name)], imports...)
		return err
	})
	return found, err
}

// leftOut reports whether the go command does not look into a folder.
func leftOut(fsys fs.FS, dir string) bool {
	base := path.Base(dir)
	if base[0] == '.' || base[0] == '_' || base == "testdata" {
		return true
	}
	_, err := fs.Stat(fsys, dir+"/go.mod")
	return err == nil
}

// fileImports returns what a file imports; nothing for a test file.
func fileImports(fsys fs.FS, name string) ([]imported, error) {
	if strings.HasSuffix(name, "_test.go") {
		return nil, nil
	}
	src, err := fs.ReadFile(fsys, name)
	if err != nil {
		return nil, err
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	var all []imported
	for _, spec := range file.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		all = append(all, imported{name, p})
	}
	return all, nil
}

// violations says, in the order of folders, which imports are not allowed.
func violations(imports map[string][]imported) []string {
	var all []string
	for folder, files := range imports {
		allowed, known := places[folder]
		if !known {
			all = append(all, fmt.Sprintf("package %s has no place yet; add it to places in internal/archtest with what it may import", folder))
			continue
		}
		for _, im := range files {
			if !allowed.allows(im.path) {
				all = append(all, fmt.Sprintf("%s imports %s; %s", im.file, display(im.path), allowed))
			}
		}
	}
	slices.Sort(all)
	return all
}

func (p place) allows(importPath string) bool {
	if folder, ok := ownFolder(importPath); ok {
		return slices.Contains(p.own, folder)
	}
	return p.foreign || isStandard(importPath)
}

// String says what may be imported.
func (p place) String() string {
	s := "its place allows the standard library"
	if p.foreign {
		s += ", other modules"
	}
	for _, folder := range p.own {
		s += ", " + displayFolder(folder)
	}
	return s
}

// ownFolder returns the folder of one of the project's packages.
func ownFolder(importPath string) (string, bool) {
	if importPath == modulePath {
		return ".", true
	}
	return strings.CutPrefix(importPath, modulePath+"/")
}

// isStandard uses that only the standard library's paths begin without a dot
// in their first element.
func isStandard(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return !strings.Contains(first, ".")
}

func display(importPath string) string {
	if folder, ok := ownFolder(importPath); ok {
		return displayFolder(folder)
	}
	return importPath
}

func displayFolder(folder string) string {
	if folder == "." {
		return "the root package"
	}
	return folder
}
