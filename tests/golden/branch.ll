; ModuleID = 'forward'
source_filename = "forward"
target datalayout = "e-i64:64-i128:128-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"

; Function Attrs: nounwind
define void @flp_forward(ptr addrspace(1) %hidden, i64 %hidden_stride, ptr addrspace(1) %weight, i64 %weight_stride, ptr addrspace(1) %bias, ptr addrspace(1) %index, ptr addrspace(1) %local_target, ptr addrspace(1) %scale, ptr addrspace(1) %count, float %cap_in, i32 %depth, i32 %vocab_valid, i32 %row_begin, i32 %row_end, i32 %bands, i32 %groups, ptr addrspace(1) %part, i64 %capacity, ptr addrspace(1) %zy) #0 {
entry:
  %0 = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x(), !range !2
  %1 = mul i32 %0, 64
  %2 = call i32 @llvm.nvvm.read.ptx.sreg.tid.x(), !range !3
  %3 = add i32 %1, %2
  %4 = icmp sge i32 %3, %vocab_valid
  br i1 %4, label %leave, label %stay

leave:                                            ; preds = %entry
  ret void

stay:                                             ; preds = %entry
  %5 = icmp eq ptr addrspace(1) %bias, null
  br i1 %5, label %then, label %else

then:                                             ; preds = %stay
  br label %join

else:                                             ; preds = %stay
  %6 = sext i32 %3 to i64
  %7 = getelementptr float, ptr addrspace(1) %bias, i64 %6
  %8 = load float, ptr addrspace(1) %7, align 4, !invariant.load !4
  br label %join

join:                                             ; preds = %else, %then
  %9 = phi i32 [ %depth, %then ], [ 1, %else ]
  %10 = phi float [ 0.000000e+00, %then ], [ %8, %else ]
  br label %while

while:                                            ; preds = %body, %join
  %11 = phi i32 [ 0, %join ], [ %15, %body ]
  %12 = phi i32 [ %9, %join ], [ %14, %body ]
  %13 = icmp sgt i32 %12, 1
  br i1 %13, label %body, label %done

body:                                             ; preds = %while
  %14 = sdiv i32 %12, 2
  %15 = add i32 %11, 1
  br label %while

done:                                             ; preds = %while
  %16 = icmp eq i32 %11, 5
  br i1 %16, label %when, label %join1

when:                                             ; preds = %done
  %17 = sext i32 %3 to i64
  %18 = getelementptr float, ptr addrspace(1) %zy, i64 %17
  store float %10, ptr addrspace(1) %18, align 4
  br label %join1

join1:                                            ; preds = %when, %done
  ret void
}

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare noundef i32 @llvm.nvvm.read.ptx.sreg.ctaid.x() #1

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare noundef i32 @llvm.nvvm.read.ptx.sreg.tid.x() #1

attributes #0 = { nounwind "denormal-fp-math-f32"="preserve-sign,preserve-sign" }
attributes #1 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }

!nvvm.annotations = !{!0, !1}

!0 = !{ptr @flp_forward, !"kernel", i32 1}
!1 = !{ptr @flp_forward, !"maxntidx", i32 64}
!2 = !{i32 0, i32 2147483647}
!3 = !{i32 0, i32 64}
!4 = !{}
