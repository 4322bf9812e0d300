; ModuleID = 'forward'
source_filename = "forward"
target datalayout = "e-i64:64-i128:128-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"

; Function Attrs: nounwind
define void @flp_forward(ptr addrspace(1) %hidden, i64 %hidden_stride, ptr addrspace(1) %weight, i64 %weight_stride, ptr addrspace(1) %bias, ptr addrspace(1) %index, ptr addrspace(1) %local_target, ptr addrspace(1) %scale, ptr addrspace(1) %count, float %cap_in, i32 %depth, i32 %vocab_valid, i32 %row_begin, i32 %row_end, i32 %bands, i32 %groups, ptr addrspace(1) %part, i64 %capacity, ptr addrspace(1) %zy) #0 {
entry:
  %0 = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x(), !range !3
  br label %loop

loop:                                             ; preds = %body, %entry
  %1 = phi i32 [ 0, %entry ], [ %9, %body ]
  %2 = phi i32 [ %0, %entry ], [ %7, %body ]
  %3 = phi float [ %cap_in, %entry ], [ %4, %body ]
  %4 = phi float [ 0.000000e+00, %entry ], [ %8, %body ]
  %5 = phi i32 [ 0, %entry ], [ %2, %body ]
  %6 = icmp slt i32 %1, %depth
  br i1 %6, label %body, label %done

body:                                             ; preds = %loop
  %7 = add i32 %2, %1
  %8 = fmul float %3, %cap_in
  %9 = add nsw i32 %1, 4
  br label %loop

done:                                             ; preds = %loop
  %10 = getelementptr float, ptr addrspace(1) %part, i64 0
  store float %3, ptr addrspace(1) %10, align 4
  %11 = sext i32 %5 to i64
  %12 = getelementptr i32, ptr addrspace(1) %count, i64 %11
  store i32 %2, ptr addrspace(1) %12, align 4
  ret void
}

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare noundef i32 @llvm.nvvm.read.ptx.sreg.ctaid.x() #1

attributes #0 = { nounwind "denormal-fp-math-f32"="preserve-sign,preserve-sign" }
attributes #1 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }

!nvvm.annotations = !{!0, !1, !2}

!0 = !{ptr @flp_forward, !"kernel", i32 1}
!1 = !{ptr @flp_forward, !"maxntidx", i32 128}
!2 = !{ptr @flp_forward, !"minctasm", i32 2}
!3 = !{i32 0, i32 2147483647}
