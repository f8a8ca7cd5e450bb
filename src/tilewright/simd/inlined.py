"""How an inline function is compiled: to LLVM code that kernels link, and no further.

Numba would also make machine code of each function, although only kernels run: `docs/lab/start.md` has the figures.
"""

from llvmlite.binding import Linkage
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class InlineCompiler(Compiler):
    """Numba's compiler, with an `InlineLibrary` for the function's code."""

    def compile_extra(self, func):
        self.state.library = InlineLibrary(self.state.targetctx.codegen(), func.__qualname__)
        return super().compile_extra(func)


class InlineLibrary(JITCodeLibrary):
    """LLVM code of an inline function and of the functions that it calls, without machine code."""

    def _finalize_final_module(self):
        """In place of giving the module to the JIT: every kernel gets its own copy of the functions."""
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == Linkage.external:
                function.linkage = Linkage.linkonce_odr
        self._shared_module, self._finalized = self._final_module, True

    def get_pointer_to_function(self, name):
        """0, as for a function without the wrapper that Python would call."""
        return 0

    @property
    def codegen(self):
        """This object, for Numba's call of `set_env`."""
        return self

    def set_env(self, name, environment):
        """Do nothing: no machine code has a pointer to this environment yet. See `connect_environments`."""


def connect_environments(result) -> None:
    """Give a kernel's machine code the environments of its inline functions, in which `print` finds its texts."""
    for environment in result._find_referenced_environments():
        result.library.codegen.set_env(environment.env_name, environment)
