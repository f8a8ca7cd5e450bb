"""How inline functions are compiled: to LLVM code that kernels link. It is optimised in each kernel, not before.

Numba optimises each function that a kernel calls and makes machine code of it. That code never runs, because an inline
function is a part of each kernel, and it is optimised there again. Leaving both out changes no instruction of a kernel,
and halves the time to compile (all of attention on an EPYC: 45 s with both, 18 s without).
"""

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering


class _Linked(JITCodeLibrary):
    """The code of an inline function, ready to be linked, unknown to LLVM's execution engine. LLVM has simplified the
    function; what it calls is inlined and optimised in the kernel."""

    def _optimize_final_module(self):
        pass

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    _name = "lowering_of_inline_functions"

    def run_pass(self, state):
        state.library = _Linked(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True  # nothing asks for an address
        super().run_pass(state)
        lowered, key = state["cr"], object()  # callers look the function up by the key
        state.targetctx.insert_user_function(key, lowered.fndesc, [state.library])
        state["cr"] = lowered._replace(cfunc=key)
        return True


class InlineCompiler(Compiler):
    """Numba's compiler with `_Lowering` in place of its own."""

    def define_pipelines(self):
        (passes,) = super().define_pipelines()
        passes.passes = [(_Lowering if step is NativeLowering else step, what) for step, what in passes.passes]
        passes.finalize()
        return [passes]


class InlineFunction(CPUDispatcher):
    """An inline function. Kernels call it; Python calls its `py_func`."""

    def __call__(self, *args, **named):
        raise TypeError(f"{self.__name__} is compiled into kernels alone: call {self.__name__}.py_func")

    def add_overload(self, result):
        self.overloads[tuple(result.signature.args)] = result  # Numba's own method also wants an address
