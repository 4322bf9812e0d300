; ModuleID = 'rows'
source_filename = "rows"
target datalayout = "e-i64:64-i128:128-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"

; Function Attrs: nounwind
define void @flp_loss_rows(ptr addrspace(1) %logprob, ptr addrspace(1) %entropy, ptr addrspace(1) %old_logprob, ptr addrspace(1) %ref_logprob, ptr addrspace(1) %advantage, ptr addrspace(1) %weight, ptr addrspace(1) %vector0, ptr addrspace(1) %vector1, ptr addrspace(1) %vector2, ptr addrspace(1) %vector3, ptr addrspace(1) %vector4, ptr addrspace(1) %vector5, ptr addrspace(1) %vector6, ptr addrspace(1) %vector7, double %parameter0, double %parameter1, double %parameter2, double %parameter3, double %parameter4, double %parameter5, double %parameter6, double %parameter7, i64 %n, ptr addrspace(1) %loss, ptr addrspace(1) %grad_logprob, ptr addrspace(1) %grad_entropy, ptr addrspace(1) %metrics) #0 {
entry:
  %0 = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x(), !range !2
  %1 = sext i32 %0 to i64
  %2 = mul i64 %1, 256
  %3 = call i32 @llvm.nvvm.read.ptx.sreg.tid.x(), !range !3
  %4 = sext i32 %3 to i64
  %5 = add i64 %2, %4
  %6 = icmp sge i64 %5, %n
  br i1 %6, label %leave, label %stay

leave:                                            ; preds = %entry
  ret void

stay:                                             ; preds = %entry
  %7 = getelementptr float, ptr addrspace(1) %logprob, i64 %5
  %8 = load float, ptr addrspace(1) %7, align 4, !invariant.load !4
  %9 = fpext float %8 to double
  %10 = getelementptr float, ptr addrspace(1) %entropy, i64 %5
  %11 = load float, ptr addrspace(1) %10, align 4, !invariant.load !4
  %12 = fpext float %11 to double
  %13 = icmp eq ptr addrspace(1) %old_logprob, null
  br i1 %13, label %then, label %else

then:                                             ; preds = %stay
  %14 = getelementptr float, ptr addrspace(1) %logprob, i64 %5
  %15 = load float, ptr addrspace(1) %14, align 4, !invariant.load !4
  %16 = fpext float %15 to double
  br label %join

else:                                             ; preds = %stay
  %17 = getelementptr float, ptr addrspace(1) %old_logprob, i64 %5
  %18 = load float, ptr addrspace(1) %17, align 4, !invariant.load !4
  %19 = fpext float %18 to double
  br label %join

join:                                             ; preds = %else, %then
  %20 = phi double [ %16, %then ], [ %19, %else ]
  %21 = getelementptr float, ptr addrspace(1) %ref_logprob, i64 %5
  %22 = load float, ptr addrspace(1) %21, align 4, !invariant.load !4
  %23 = fpext float %22 to double
  %24 = getelementptr float, ptr addrspace(1) %advantage, i64 %5
  %25 = load float, ptr addrspace(1) %24, align 4, !invariant.load !4
  %26 = fpext float %25 to double
  %27 = icmp eq ptr addrspace(1) %weight, null
  br i1 %27, label %then1, label %else2

then1:                                            ; preds = %join
  br label %join3

else2:                                            ; preds = %join
  %28 = getelementptr float, ptr addrspace(1) %weight, i64 %5
  %29 = load float, ptr addrspace(1) %28, align 4, !invariant.load !4
  %30 = fpext float %29 to double
  br label %join3

join3:                                            ; preds = %else2, %then1
  %31 = phi double [ 1.000000e+00, %then1 ], [ %30, %else2 ]
  %32 = getelementptr float, ptr addrspace(1) %vector0, i64 %5
  %33 = load float, ptr addrspace(1) %32, align 4, !invariant.load !4
  %34 = fpext float %33 to double
  %35 = getelementptr float, ptr addrspace(1) %vector1, i64 %5
  %36 = load float, ptr addrspace(1) %35, align 4, !invariant.load !4
  %37 = fpext float %36 to double
  %38 = fsub double %9, %20
  %39 = fcmp olt double %38, %34
  %40 = fcmp uno double %38, %38
  %41 = or i1 %39, %40
  %42 = select i1 %41, double %38, double %34
  %43 = fcmp ogt double %38, %34
  %44 = fcmp oeq double %38, %34
  %45 = select i1 %44, double 5.000000e-01, double 1.000000e+00
  %46 = select i1 %43, double 0.000000e+00, double %45
  %47 = fcmp ogt double %34, %38
  %48 = fcmp oeq double %38, %34
  %49 = select i1 %48, double 5.000000e-01, double 1.000000e+00
  %50 = select i1 %47, double 0.000000e+00, double %49
  %51 = fmul double %46, 1.000000e+00
  %52 = fcmp oeq double %46, 0.000000e+00
  %53 = select i1 %52, double 0.000000e+00, double %51
  %54 = fcmp ogt double %38, %37
  %55 = fcmp uno double %38, %38
  %56 = or i1 %54, %55
  %57 = select i1 %56, double %38, double %37
  %58 = fcmp olt double %38, %37
  %59 = fcmp oeq double %38, %37
  %60 = select i1 %59, double 5.000000e-01, double 1.000000e+00
  %61 = select i1 %58, double 0.000000e+00, double %60
  %62 = fcmp olt double %37, %38
  %63 = fcmp oeq double %38, %37
  %64 = select i1 %63, double 5.000000e-01, double 1.000000e+00
  %65 = select i1 %62, double 0.000000e+00, double %64
  %66 = fmul double %61, 1.000000e+00
  %67 = fcmp oeq double %61, 0.000000e+00
  %68 = select i1 %67, double 0.000000e+00, double %66
  %69 = fadd double %42, %57
  %70 = fmul double 1.000000e+00, %53
  %71 = fmul double 1.000000e+00, %68
  %72 = fadd double %70, %71
  %73 = fmul double %parameter0, %31
  %74 = fcmp ogt double %38, %parameter1
  %75 = fcmp uno double %38, %38
  %76 = or i1 %74, %75
  %77 = select i1 %76, double %38, double %parameter1
  %78 = fcmp olt double %77, %73
  %79 = fcmp uno double %77, %77
  %80 = or i1 %78, %79
  %81 = select i1 %80, double %77, double %73
  %82 = fcmp oge double %38, %parameter1
  %83 = fcmp ole double %38, %73
  %84 = and i1 %82, %83
  %85 = select i1 %84, double 1.000000e+00, double 0.000000e+00
  %86 = fcmp olt double %parameter1, %73
  %87 = fcmp olt double %38, %parameter1
  %88 = and i1 %86, %87
  %89 = select i1 %88, double 1.000000e+00, double 0.000000e+00
  %90 = fcmp ogt double %38, %73
  %91 = fcmp olt double %73, %parameter1
  %92 = or i1 %90, %91
  %93 = select i1 %92, double 1.000000e+00, double 0.000000e+00
  %94 = fmul double %85, 1.000000e+00
  %95 = fcmp oeq double %85, 0.000000e+00
  %96 = select i1 %95, double 0.000000e+00, double %94
  %97 = fadd double %69, %81
  %98 = fmul double 1.000000e+00, %72
  %99 = fmul double 1.000000e+00, %96
  %100 = fadd double %98, %99
  %101 = fdiv double %97, 8.000000e+00
  %102 = fneg double %101
  %103 = fdiv double %102, 8.000000e+00
  %104 = fmul double 1.250000e-01, %100
  %105 = fcmp ogt double %101, 7.080000e+02
  %106 = fcmp olt double %101, -7.080000e+02
  %107 = fcmp ogt double %101, 7.080000e+02
  %108 = select i1 %107, double 7.080000e+02, double %101
  %109 = select i1 %106, double -7.080000e+02, double %108
  %110 = call double @llvm.fma.f64(double %109, double 0x3FF71547652B82FE, double 0x4338000000000000)
  %111 = fsub double %110, 0x4338000000000000
  %112 = call double @llvm.fma.f64(double %111, double 0xBFE62E42FEE00000, double %109)
  %113 = call double @llvm.fma.f64(double %111, double 0xBDEA39EF35793C76, double %112)
  %114 = bitcast double %110 to i64
  %115 = add i64 %114, 1023
  %116 = shl i64 %115, 52
  %117 = bitcast i64 %116 to double
  %118 = call double @llvm.fma.f64(double 0x3DA93974A8C07C9D, double %113, double 0x3DE6124613A86D09)
  %119 = call double @llvm.fma.f64(double %118, double %113, double 0x3E21EED8EFF8D898)
  %120 = call double @llvm.fma.f64(double %119, double %113, double 0x3E5AE64567F544E4)
  %121 = call double @llvm.fma.f64(double %120, double %113, double 0x3E927E4FB7789F5C)
  %122 = call double @llvm.fma.f64(double %121, double %113, double 0x3EC71DE3A556C734)
  %123 = call double @llvm.fma.f64(double %122, double %113, double 0x3EFA01A01A01A01A)
  %124 = call double @llvm.fma.f64(double %123, double %113, double 0x3F2A01A01A01A01A)
  %125 = call double @llvm.fma.f64(double %124, double %113, double 0x3F56C16C16C16C17)
  %126 = call double @llvm.fma.f64(double %125, double %113, double 0x3F81111111111111)
  %127 = call double @llvm.fma.f64(double %126, double %113, double 0x3FA5555555555555)
  %128 = call double @llvm.fma.f64(double %127, double %113, double 0x3FC5555555555555)
  %129 = call double @llvm.fma.f64(double %128, double %113, double 5.000000e-01)
  %130 = call double @llvm.fma.f64(double %129, double %113, double 1.000000e+00)
  %131 = fmul double %113, %130
  %132 = call double @llvm.fma.f64(double %117, double %131, double %117)
  %133 = fcmp olt double %101, -7.080000e+02
  %134 = select i1 %133, double 0.000000e+00, double %132
  %135 = select i1 %105, double 0x7FF0000000000000, double %134
  %136 = fmul double %135, %104
  %137 = fneg double %38
  %138 = fcmp ogt double %137, 7.080000e+02
  %139 = fcmp olt double %137, -7.080000e+02
  %140 = fcmp ogt double %137, 7.080000e+02
  %141 = select i1 %140, double 7.080000e+02, double %137
  %142 = select i1 %139, double -7.080000e+02, double %141
  %143 = call double @llvm.fma.f64(double %142, double 0x3FF71547652B82FE, double 0x4338000000000000)
  %144 = fsub double %143, 0x4338000000000000
  %145 = call double @llvm.fma.f64(double %144, double 0xBFE62E42FEE00000, double %142)
  %146 = call double @llvm.fma.f64(double %144, double 0xBDEA39EF35793C76, double %145)
  %147 = bitcast double %143 to i64
  %148 = add i64 %147, 1023
  %149 = shl i64 %148, 52
  %150 = bitcast i64 %149 to double
  %151 = call double @llvm.fma.f64(double 0x3DA93974A8C07C9D, double %146, double 0x3DE6124613A86D09)
  %152 = call double @llvm.fma.f64(double %151, double %146, double 0x3E21EED8EFF8D898)
  %153 = call double @llvm.fma.f64(double %152, double %146, double 0x3E5AE64567F544E4)
  %154 = call double @llvm.fma.f64(double %153, double %146, double 0x3E927E4FB7789F5C)
  %155 = call double @llvm.fma.f64(double %154, double %146, double 0x3EC71DE3A556C734)
  %156 = call double @llvm.fma.f64(double %155, double %146, double 0x3EFA01A01A01A01A)
  %157 = call double @llvm.fma.f64(double %156, double %146, double 0x3F2A01A01A01A01A)
  %158 = call double @llvm.fma.f64(double %157, double %146, double 0x3F56C16C16C16C17)
  %159 = call double @llvm.fma.f64(double %158, double %146, double 0x3F81111111111111)
  %160 = call double @llvm.fma.f64(double %159, double %146, double 0x3FA5555555555555)
  %161 = call double @llvm.fma.f64(double %160, double %146, double 0x3FC5555555555555)
  %162 = call double @llvm.fma.f64(double %161, double %146, double 5.000000e-01)
  %163 = call double @llvm.fma.f64(double %162, double %146, double 1.000000e+00)
  %164 = fmul double %146, %163
  %165 = fsub double %150, 1.000000e+00
  %166 = call double @llvm.fma.f64(double %150, double %164, double %165)
  %167 = select i1 %138, double 0x7FF0000000000000, double %166
  %168 = fadd double %167, 1.000000e+00
  %169 = fmul double %168, -1.000000e+00
  %170 = call double @llvm.fabs.f64(double %23)
  %171 = fmul double %167, %170
  %172 = fmul double %170, %169
  %173 = fsub double %135, %171
  %174 = fmul double 1.000000e+00, %136
  %175 = fmul double -1.000000e+00, %172
  %176 = fadd double %174, %175
  %177 = fmul double %97, %97
  %178 = fmul double %97, %100
  %179 = fmul double %97, %100
  %180 = fadd double %178, %179
  %181 = fadd double 1.000000e+00, %177
  %182 = fmul double 1.000000e+00, %180
  %183 = fcmp olt double %181, 0x10000000000000
  %184 = fmul double %181, 0x4350000000000000
  %185 = select i1 %183, double %184, double %181
  %186 = bitcast double %185 to i64
  %187 = lshr i64 %186, 52
  %188 = and i64 %187, 2047
  %189 = sub i64 %188, 1023
  %190 = and i64 %186, 4503599627370495
  %191 = or i64 %190, 4607182418800017408
  %192 = bitcast i64 %191 to double
  %193 = fcmp ogt double %192, 0x3FF6A09E667F3BCD
  %194 = fmul double %192, 5.000000e-01
  %195 = select i1 %193, double %194, double %192
  %196 = add i64 %189, 1
  %197 = select i1 %193, i64 %196, i64 %189
  %198 = fsub double %195, 1.000000e+00
  %199 = fadd double %195, 1.000000e+00
  %200 = fdiv double %198, %199
  %201 = fmul double %200, %200
  %202 = call double @llvm.fma.f64(double 0x3FBAF286BCA1AF28, double %201, double 0x3FBE1E1E1E1E1E1E)
  %203 = call double @llvm.fma.f64(double %202, double %201, double 0x3FC1111111111111)
  %204 = call double @llvm.fma.f64(double %203, double %201, double 0x3FC3B13B13B13B14)
  %205 = call double @llvm.fma.f64(double %204, double %201, double 0x3FC745D1745D1746)
  %206 = call double @llvm.fma.f64(double %205, double %201, double 0x3FCC71C71C71C71C)
  %207 = call double @llvm.fma.f64(double %206, double %201, double 0x3FD2492492492492)
  %208 = call double @llvm.fma.f64(double %207, double %201, double 4.000000e-01)
  %209 = call double @llvm.fma.f64(double %208, double %201, double 0x3FE5555555555555)
  %210 = call double @llvm.fma.f64(double %209, double %201, double 2.000000e+00)
  %211 = fmul double %200, %210
  %212 = sitofp i64 %197 to double
  %213 = call double @llvm.fma.f64(double %211, double 0x3FF71547652B82FE, double %212)
  %214 = select i1 %183, double 5.400000e+01, double 0.000000e+00
  %215 = fsub double %213, %214
  %216 = fmul double %215, 0x3FE62E42FEFA39EF
  %217 = fcmp oeq double %181, 0.000000e+00
  %218 = fcmp oeq double %181, 0x7FF0000000000000
  %219 = select i1 %218, double %181, double %216
  %220 = select i1 %217, double 0xFFF0000000000000, double %219
  %221 = fcmp oge double %181, 0.000000e+00
  %222 = select i1 %221, double %220, double 0x7FF8000000000000
  %223 = fdiv double 1.000000e+00, %181
  %224 = fmul double %223, %182
  %225 = fadd double 2.000000e+00, %12
  %226 = call double @llvm.sqrt.f64(double %225)
  %227 = fdiv double 5.000000e-01, %226
  %228 = fmul double %227, 1.000000e+00
  %229 = fdiv double %222, %226
  %230 = fdiv double 1.000000e+00, %226
  %231 = fneg double %229
  %232 = fdiv double %231, %226
  %233 = fmul double %232, %228
  %234 = fdiv double 1.000000e+00, %226
  %235 = fneg double %229
  %236 = fdiv double %235, %226
  %237 = fmul double %234, %224
  %238 = fadd double %173, %229
  %239 = fmul double 1.000000e+00, %233
  %240 = fmul double 1.000000e+00, %176
  %241 = fmul double 1.000000e+00, %237
  %242 = fadd double %240, %241
  %243 = fcmp olt double %38, 1.000000e+00
  %244 = fcmp ole double -3.000000e+00, %97
  %245 = and i1 %243, %244
  %246 = fcmp oeq double %26, 0.000000e+00
  %247 = or i1 %245, %246
  %248 = fcmp ole double %238, -1.000000e+02
  %249 = xor i1 %248, true
  %250 = and i1 %247, %249
  %251 = fmul double %12, %238
  %252 = fmul double %238, 1.000000e+00
  %253 = fmul double %12, %239
  %254 = fadd double %252, %253
  %255 = fmul double %12, %242
  %256 = select i1 %250, double %238, double %251
  %257 = select i1 %250, double 1.000000e+00, double 0.000000e+00
  %258 = xor i1 %250, true
  %259 = select i1 %258, double 1.000000e+00, double 0.000000e+00
  %260 = fmul double %257, %239
  %261 = fcmp oeq double %257, 0.000000e+00
  %262 = select i1 %261, double 0.000000e+00, double %260
  %263 = fmul double %259, %254
  %264 = fcmp oeq double %259, 0.000000e+00
  %265 = select i1 %264, double 0.000000e+00, double %263
  %266 = fadd double %262, %265
  %267 = select i1 %250, double 1.000000e+00, double 0.000000e+00
  %268 = xor i1 %250, true
  %269 = select i1 %268, double 1.000000e+00, double 0.000000e+00
  %270 = fmul double %267, %242
  %271 = fcmp oeq double %267, 0.000000e+00
  %272 = select i1 %271, double 0.000000e+00, double %270
  %273 = fmul double %269, %255
  %274 = fcmp oeq double %269, 0.000000e+00
  %275 = select i1 %274, double 0.000000e+00, double %273
  %276 = fadd double %272, %275
  %277 = fadd double %256, %238
  %278 = fmul double 1.000000e+00, %266
  %279 = fmul double 1.000000e+00, %276
  %280 = fcmp oeq double %26, 1.000000e+00
  %281 = xor i1 %280, true
  %282 = fcmp olt double 0.000000e+00, %31
  %283 = and i1 %281, %282
  %284 = select i1 %283, double %31, double 2.500000e-01
  %285 = fmul double %277, %284
  %286 = fmul double %284, %278
  %287 = fmul double %284, %279
  %288 = select i1 %250, double 1.000000e+00, double 0.000000e+00
  %289 = icmp eq ptr addrspace(1) %loss, null
  %290 = xor i1 %289, true
  br i1 %290, label %when, label %join4

when:                                             ; preds = %join3
  %291 = fptrunc double %285 to float
  %292 = getelementptr float, ptr addrspace(1) %loss, i64 %5
  store float %291, ptr addrspace(1) %292, align 4
  br label %join4

join4:                                            ; preds = %when, %join3
  %293 = icmp eq ptr addrspace(1) %grad_logprob, null
  %294 = xor i1 %293, true
  br i1 %294, label %when5, label %join6

when5:                                            ; preds = %join4
  %295 = fptrunc double %287 to float
  %296 = getelementptr float, ptr addrspace(1) %grad_logprob, i64 %5
  store float %295, ptr addrspace(1) %296, align 4
  br label %join6

join6:                                            ; preds = %when5, %join4
  %297 = icmp eq ptr addrspace(1) %grad_entropy, null
  %298 = xor i1 %297, true
  br i1 %298, label %when7, label %join8

when7:                                            ; preds = %join6
  %299 = fptrunc double %286 to float
  %300 = getelementptr float, ptr addrspace(1) %grad_entropy, i64 %5
  store float %299, ptr addrspace(1) %300, align 4
  br label %join8

join8:                                            ; preds = %when7, %join6
  %301 = mul i64 %n, 0
  %302 = add i64 %301, %5
  %303 = icmp eq ptr addrspace(1) %metrics, null
  %304 = xor i1 %303, true
  br i1 %304, label %when9, label %join10

when9:                                            ; preds = %join8
  %305 = fptrunc double %288 to float
  %306 = getelementptr float, ptr addrspace(1) %metrics, i64 %302
  store float %305, ptr addrspace(1) %306, align 4
  br label %join10

join10:                                           ; preds = %when9, %join8
  %307 = add i64 %n, %5
  %308 = icmp eq ptr addrspace(1) %metrics, null
  %309 = xor i1 %308, true
  br i1 %309, label %when11, label %join12

when11:                                           ; preds = %join10
  %310 = fptrunc double %97 to float
  %311 = getelementptr float, ptr addrspace(1) %metrics, i64 %307
  store float %310, ptr addrspace(1) %311, align 4
  br label %join12

join12:                                           ; preds = %when11, %join10
  ret void
}

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare noundef i32 @llvm.nvvm.read.ptx.sreg.ctaid.x() #1

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare noundef i32 @llvm.nvvm.read.ptx.sreg.tid.x() #1

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare double @llvm.fma.f64(double, double, double) #1

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare double @llvm.fabs.f64(double) #1

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare double @llvm.sqrt.f64(double) #1

attributes #0 = { nounwind "denormal-fp-math-f32"="preserve-sign,preserve-sign" }
attributes #1 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }

!nvvm.annotations = !{!0, !1}

!0 = !{ptr @flp_loss_rows, !"kernel", i32 1}
!1 = !{ptr @flp_loss_rows, !"maxntidx", i32 256}
!2 = !{i32 0, i32 2147483647}
!3 = !{i32 0, i32 256}
!4 = !{}
