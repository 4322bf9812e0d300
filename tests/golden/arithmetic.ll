; ModuleID = 'forward'
source_filename = "forward"
target datalayout = "e-i64:64-i128:128-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"

; Function Attrs: nounwind
define void @flp_forward(ptr addrspace(1) %hidden, i64 %hidden_stride, ptr addrspace(1) %weight, i64 %weight_stride, ptr addrspace(1) %bias, ptr addrspace(1) %index, ptr addrspace(1) %local_target, ptr addrspace(1) %scale, ptr addrspace(1) %count, float %cap_in, i32 %depth, i32 %vocab_valid, i32 %row_begin, i32 %row_end, i32 %bands, i32 %groups, ptr addrspace(1) %part, i64 %capacity, ptr addrspace(1) %zy) #0 {
entry:
  %0 = fmul float %cap_in, %cap_in
  %1 = fadd float %0, %cap_in
  %2 = call float @llvm.fma.f32(float %cap_in, float %cap_in, float %1)
  %3 = call float @llvm.minnum.f32(float %cap_in, float 2.000000e+00)
  %4 = call float @llvm.fabs.f32(float %1)
  %5 = call float @llvm.maximum.f32(float %3, float %4)
  %6 = fdiv float %2, %5
  %7 = fpext float %6 to double
  %8 = fmul double %7, 1.000000e-03
  %9 = sdiv i32 %depth, 3
  %10 = srem i32 %depth, 5
  %11 = add i32 %9, %10
  %12 = shl i32 %11, 2
  %13 = ashr i32 %12, 1
  %14 = lshr i32 %depth, 3
  %15 = udiv i32 %depth, 7
  %16 = and i32 %14, %15
  %17 = xor i32 %13, %16
  %18 = urem i32 %depth, 9
  %19 = or i32 %17, %18
  %20 = sext i32 %19 to i64
  %21 = zext i32 %depth to i64
  %22 = sub i64 %20, %21
  %23 = fptrunc double %8 to float
  %24 = call float @llvm.nvvm.lg2.approx.ftz.f(float %6)
  %25 = call float @llvm.sqrt.f32(float %24)
  %26 = call float @llvm.nvvm.rcp.rn.ftz.f(float %25)
  %27 = fmul float %23, %26
  %28 = getelementptr float, ptr addrspace(1) %part, i64 0
  store float %27, ptr addrspace(1) %28, align 4
  %29 = bitcast float %6 to i32
  %30 = getelementptr i32, ptr addrspace(1) %zy, i64 %22
  store i32 %29, ptr addrspace(1) %30, align 4
  %31 = icmp ult i32 %depth, 9
  %32 = fcmp une float %cap_in, %1
  %33 = xor i1 %32, true
  %34 = and i1 %31, %33
  %35 = select i1 %34, i32 %19, i32 -1
  %36 = getelementptr i32, ptr addrspace(1) %count, i64 0
  store i32 %35, ptr addrspace(1) %36, align 4
  ret void
}

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare float @llvm.fma.f32(float, float, float) #1

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare float @llvm.minnum.f32(float, float) #1

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare float @llvm.fabs.f32(float) #1

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare float @llvm.maximum.f32(float, float) #1

; Function Attrs: nocallback nofree nosync nounwind willreturn memory(none)
declare float @llvm.nvvm.lg2.approx.ftz.f(float) #2

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare float @llvm.sqrt.f32(float) #1

; Function Attrs: nocallback nofree nosync nounwind willreturn memory(none)
declare float @llvm.nvvm.rcp.rn.ftz.f(float) #2

attributes #0 = { nounwind "denormal-fp-math-f32"="preserve-sign,preserve-sign" }
attributes #1 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #2 = { nocallback nofree nosync nounwind willreturn memory(none) }

!nvvm.annotations = !{!0, !1}

!0 = !{ptr @flp_forward, !"kernel", i32 1}
!1 = !{ptr @flp_forward, !"maxntidx", i32 32}
