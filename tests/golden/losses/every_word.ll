; ModuleID = 'rows'
source_filename = "rows"
target datalayout = "e-i64:64-i128:128-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"

; Function Attrs: nounwind
define void @flp_loss_rows(ptr addrspace(1) %logprob, ptr addrspace(1) %entropy, ptr addrspace(1) %old_logprob, ptr addrspace(1) %ref_logprob, ptr addrspace(1) %advantage, ptr addrspace(1) %weight, ptr addrspace(1) %vector0, ptr addrspace(1) %vector1, ptr addrspace(1) %vector2, ptr addrspace(1) %vector3, ptr addrspace(1) %vector4, ptr addrspace(1) %vector5, ptr addrspace(1) %vector6, ptr addrspace(1) %vector7, i64 %parameter0, i64 %parameter1, i64 %parameter2, i64 %parameter3, i64 %parameter4, i64 %parameter5, i64 %parameter6, i64 %parameter7, i64 %n, ptr addrspace(1) %loss, ptr addrspace(1) %grad_logprob, ptr addrspace(1) %grad_entropy, ptr addrspace(1) %metrics) #0 {
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
  %38 = bitcast i64 %parameter0 to double
  %39 = bitcast i64 %parameter1 to double
  %40 = fsub double %9, %20
  %41 = fcmp olt double %40, %34
  %42 = fcmp uno double %40, %40
  %43 = or i1 %41, %42
  %44 = select i1 %43, double %40, double %34
  %45 = fcmp ogt double %40, %34
  %46 = fcmp oeq double %40, %34
  %47 = select i1 %46, double 5.000000e-01, double 1.000000e+00
  %48 = select i1 %45, double 0.000000e+00, double %47
  %49 = fcmp ogt double %34, %40
  %50 = fcmp oeq double %40, %34
  %51 = select i1 %50, double 5.000000e-01, double 1.000000e+00
  %52 = select i1 %49, double 0.000000e+00, double %51
  %53 = fmul double %48, 1.000000e+00
  %54 = fcmp oeq double %48, 0.000000e+00
  %55 = select i1 %54, double 0.000000e+00, double %53
  %56 = fcmp ogt double %40, %37
  %57 = fcmp uno double %40, %40
  %58 = or i1 %56, %57
  %59 = select i1 %58, double %40, double %37
  %60 = fcmp olt double %40, %37
  %61 = fcmp oeq double %40, %37
  %62 = select i1 %61, double 5.000000e-01, double 1.000000e+00
  %63 = select i1 %60, double 0.000000e+00, double %62
  %64 = fcmp olt double %37, %40
  %65 = fcmp oeq double %40, %37
  %66 = select i1 %65, double 5.000000e-01, double 1.000000e+00
  %67 = select i1 %64, double 0.000000e+00, double %66
  %68 = fmul double %63, 1.000000e+00
  %69 = fcmp oeq double %63, 0.000000e+00
  %70 = select i1 %69, double 0.000000e+00, double %68
  %71 = fadd double %44, %59
  %72 = fmul double 1.000000e+00, %55
  %73 = fmul double 1.000000e+00, %70
  %74 = fadd double %72, %73
  %75 = fmul double %38, %31
  %76 = fcmp ogt double %40, %39
  %77 = fcmp uno double %40, %40
  %78 = or i1 %76, %77
  %79 = select i1 %78, double %40, double %39
  %80 = fcmp olt double %79, %75
  %81 = fcmp uno double %79, %79
  %82 = or i1 %80, %81
  %83 = select i1 %82, double %79, double %75
  %84 = fcmp oge double %40, %39
  %85 = fcmp ole double %40, %75
  %86 = and i1 %84, %85
  %87 = select i1 %86, double 1.000000e+00, double 0.000000e+00
  %88 = fcmp olt double %39, %75
  %89 = fcmp olt double %40, %39
  %90 = and i1 %88, %89
  %91 = select i1 %90, double 1.000000e+00, double 0.000000e+00
  %92 = fcmp ogt double %40, %75
  %93 = fcmp olt double %75, %39
  %94 = or i1 %92, %93
  %95 = select i1 %94, double 1.000000e+00, double 0.000000e+00
  %96 = fmul double %87, 1.000000e+00
  %97 = fcmp oeq double %87, 0.000000e+00
  %98 = select i1 %97, double 0.000000e+00, double %96
  %99 = fadd double %71, %83
  %100 = fmul double 1.000000e+00, %74
  %101 = fmul double 1.000000e+00, %98
  %102 = fadd double %100, %101
  %103 = fdiv double %99, 8.000000e+00
  %104 = fneg double %103
  %105 = fdiv double %104, 8.000000e+00
  %106 = fmul double 1.250000e-01, %102
  %107 = fcmp ogt double %103, 7.080000e+02
  %108 = fcmp olt double %103, -7.080000e+02
  %109 = fcmp ogt double %103, 7.080000e+02
  %110 = select i1 %109, double 7.080000e+02, double %103
  %111 = select i1 %108, double -7.080000e+02, double %110
  %112 = call double @llvm.fma.f64(double %111, double 0x3FF71547652B82FE, double 0x4338000000000000)
  %113 = fsub double %112, 0x4338000000000000
  %114 = call double @llvm.fma.f64(double %113, double 0xBFE62E42FEE00000, double %111)
  %115 = call double @llvm.fma.f64(double %113, double 0xBDEA39EF35793C76, double %114)
  %116 = bitcast double %112 to i64
  %117 = add i64 %116, 1023
  %118 = shl i64 %117, 52
  %119 = bitcast i64 %118 to double
  %120 = call double @llvm.fma.f64(double 0x3DA93974A8C07C9D, double %115, double 0x3DE6124613A86D09)
  %121 = call double @llvm.fma.f64(double %120, double %115, double 0x3E21EED8EFF8D898)
  %122 = call double @llvm.fma.f64(double %121, double %115, double 0x3E5AE64567F544E4)
  %123 = call double @llvm.fma.f64(double %122, double %115, double 0x3E927E4FB7789F5C)
  %124 = call double @llvm.fma.f64(double %123, double %115, double 0x3EC71DE3A556C734)
  %125 = call double @llvm.fma.f64(double %124, double %115, double 0x3EFA01A01A01A01A)
  %126 = call double @llvm.fma.f64(double %125, double %115, double 0x3F2A01A01A01A01A)
  %127 = call double @llvm.fma.f64(double %126, double %115, double 0x3F56C16C16C16C17)
  %128 = call double @llvm.fma.f64(double %127, double %115, double 0x3F81111111111111)
  %129 = call double @llvm.fma.f64(double %128, double %115, double 0x3FA5555555555555)
  %130 = call double @llvm.fma.f64(double %129, double %115, double 0x3FC5555555555555)
  %131 = call double @llvm.fma.f64(double %130, double %115, double 5.000000e-01)
  %132 = call double @llvm.fma.f64(double %131, double %115, double 1.000000e+00)
  %133 = fmul double %115, %132
  %134 = call double @llvm.fma.f64(double %119, double %133, double %119)
  %135 = fcmp olt double %103, -7.080000e+02
  %136 = select i1 %135, double 0.000000e+00, double %134
  %137 = select i1 %107, double 0x7FF0000000000000, double %136
  %138 = fmul double %137, %106
  %139 = fneg double %40
  %140 = fcmp ogt double %139, 7.080000e+02
  %141 = fcmp olt double %139, -7.080000e+02
  %142 = fcmp ogt double %139, 7.080000e+02
  %143 = select i1 %142, double 7.080000e+02, double %139
  %144 = select i1 %141, double -7.080000e+02, double %143
  %145 = call double @llvm.fma.f64(double %144, double 0x3FF71547652B82FE, double 0x4338000000000000)
  %146 = fsub double %145, 0x4338000000000000
  %147 = call double @llvm.fma.f64(double %146, double 0xBFE62E42FEE00000, double %144)
  %148 = call double @llvm.fma.f64(double %146, double 0xBDEA39EF35793C76, double %147)
  %149 = bitcast double %145 to i64
  %150 = add i64 %149, 1023
  %151 = shl i64 %150, 52
  %152 = bitcast i64 %151 to double
  %153 = call double @llvm.fma.f64(double 0x3DA93974A8C07C9D, double %148, double 0x3DE6124613A86D09)
  %154 = call double @llvm.fma.f64(double %153, double %148, double 0x3E21EED8EFF8D898)
  %155 = call double @llvm.fma.f64(double %154, double %148, double 0x3E5AE64567F544E4)
  %156 = call double @llvm.fma.f64(double %155, double %148, double 0x3E927E4FB7789F5C)
  %157 = call double @llvm.fma.f64(double %156, double %148, double 0x3EC71DE3A556C734)
  %158 = call double @llvm.fma.f64(double %157, double %148, double 0x3EFA01A01A01A01A)
  %159 = call double @llvm.fma.f64(double %158, double %148, double 0x3F2A01A01A01A01A)
  %160 = call double @llvm.fma.f64(double %159, double %148, double 0x3F56C16C16C16C17)
  %161 = call double @llvm.fma.f64(double %160, double %148, double 0x3F81111111111111)
  %162 = call double @llvm.fma.f64(double %161, double %148, double 0x3FA5555555555555)
  %163 = call double @llvm.fma.f64(double %162, double %148, double 0x3FC5555555555555)
  %164 = call double @llvm.fma.f64(double %163, double %148, double 5.000000e-01)
  %165 = call double @llvm.fma.f64(double %164, double %148, double 1.000000e+00)
  %166 = fmul double %148, %165
  %167 = fsub double %152, 1.000000e+00
  %168 = call double @llvm.fma.f64(double %152, double %166, double %167)
  %169 = select i1 %140, double 0x7FF0000000000000, double %168
  %170 = fadd double %169, 1.000000e+00
  %171 = fmul double %170, -1.000000e+00
  %172 = call double @llvm.fabs.f64(double %23)
  %173 = fmul double %169, %172
  %174 = fmul double %172, %171
  %175 = fsub double %137, %173
  %176 = fmul double 1.000000e+00, %138
  %177 = fmul double -1.000000e+00, %174
  %178 = fadd double %176, %177
  %179 = fmul double %99, %99
  %180 = fmul double %99, %102
  %181 = fmul double %99, %102
  %182 = fadd double %180, %181
  %183 = fadd double 1.000000e+00, %179
  %184 = fmul double 1.000000e+00, %182
  %185 = fcmp olt double %183, 0x10000000000000
  %186 = fmul double %183, 0x4350000000000000
  %187 = select i1 %185, double %186, double %183
  %188 = bitcast double %187 to i64
  %189 = lshr i64 %188, 52
  %190 = and i64 %189, 2047
  %191 = sub i64 %190, 1023
  %192 = and i64 %188, 4503599627370495
  %193 = or i64 %192, 4607182418800017408
  %194 = bitcast i64 %193 to double
  %195 = fcmp ogt double %194, 0x3FF6A09E667F3BCD
  %196 = fmul double %194, 5.000000e-01
  %197 = select i1 %195, double %196, double %194
  %198 = add i64 %191, 1
  %199 = select i1 %195, i64 %198, i64 %191
  %200 = fsub double %197, 1.000000e+00
  %201 = fadd double %197, 1.000000e+00
  %202 = fdiv double %200, %201
  %203 = fmul double %202, %202
  %204 = call double @llvm.fma.f64(double 0x3FBAF286BCA1AF28, double %203, double 0x3FBE1E1E1E1E1E1E)
  %205 = call double @llvm.fma.f64(double %204, double %203, double 0x3FC1111111111111)
  %206 = call double @llvm.fma.f64(double %205, double %203, double 0x3FC3B13B13B13B14)
  %207 = call double @llvm.fma.f64(double %206, double %203, double 0x3FC745D1745D1746)
  %208 = call double @llvm.fma.f64(double %207, double %203, double 0x3FCC71C71C71C71C)
  %209 = call double @llvm.fma.f64(double %208, double %203, double 0x3FD2492492492492)
  %210 = call double @llvm.fma.f64(double %209, double %203, double 4.000000e-01)
  %211 = call double @llvm.fma.f64(double %210, double %203, double 0x3FE5555555555555)
  %212 = call double @llvm.fma.f64(double %211, double %203, double 2.000000e+00)
  %213 = fmul double %202, %212
  %214 = sitofp i64 %199 to double
  %215 = call double @llvm.fma.f64(double %213, double 0x3FF71547652B82FE, double %214)
  %216 = select i1 %185, double 5.400000e+01, double 0.000000e+00
  %217 = fsub double %215, %216
  %218 = fmul double %217, 0x3FE62E42FEFA39EF
  %219 = fcmp oeq double %183, 0.000000e+00
  %220 = fcmp oeq double %183, 0x7FF0000000000000
  %221 = select i1 %220, double %183, double %218
  %222 = select i1 %219, double 0xFFF0000000000000, double %221
  %223 = fcmp oge double %183, 0.000000e+00
  %224 = select i1 %223, double %222, double 0x7FF8000000000000
  %225 = fdiv double 1.000000e+00, %183
  %226 = fmul double %225, %184
  %227 = fadd double 2.000000e+00, %12
  %228 = call double @llvm.sqrt.f64(double %227)
  %229 = fdiv double 5.000000e-01, %228
  %230 = fmul double %229, 1.000000e+00
  %231 = fdiv double %224, %228
  %232 = fdiv double 1.000000e+00, %228
  %233 = fneg double %231
  %234 = fdiv double %233, %228
  %235 = fmul double %234, %230
  %236 = fdiv double 1.000000e+00, %228
  %237 = fneg double %231
  %238 = fdiv double %237, %228
  %239 = fmul double %236, %226
  %240 = fadd double %175, %231
  %241 = fmul double 1.000000e+00, %235
  %242 = fmul double 1.000000e+00, %178
  %243 = fmul double 1.000000e+00, %239
  %244 = fadd double %242, %243
  %245 = fcmp olt double %40, 1.000000e+00
  %246 = fcmp ole double -3.000000e+00, %99
  %247 = and i1 %245, %246
  %248 = fcmp oeq double %26, 0.000000e+00
  %249 = or i1 %247, %248
  %250 = fcmp ole double %240, -1.000000e+02
  %251 = xor i1 %250, true
  %252 = and i1 %249, %251
  %253 = fmul double %12, %240
  %254 = fmul double %240, 1.000000e+00
  %255 = fmul double %12, %241
  %256 = fadd double %254, %255
  %257 = fmul double %12, %244
  %258 = select i1 %252, double %240, double %253
  %259 = select i1 %252, double 1.000000e+00, double 0.000000e+00
  %260 = xor i1 %252, true
  %261 = select i1 %260, double 1.000000e+00, double 0.000000e+00
  %262 = fmul double %259, %241
  %263 = fcmp oeq double %259, 0.000000e+00
  %264 = select i1 %263, double 0.000000e+00, double %262
  %265 = fmul double %261, %256
  %266 = fcmp oeq double %261, 0.000000e+00
  %267 = select i1 %266, double 0.000000e+00, double %265
  %268 = fadd double %264, %267
  %269 = select i1 %252, double 1.000000e+00, double 0.000000e+00
  %270 = xor i1 %252, true
  %271 = select i1 %270, double 1.000000e+00, double 0.000000e+00
  %272 = fmul double %269, %244
  %273 = fcmp oeq double %269, 0.000000e+00
  %274 = select i1 %273, double 0.000000e+00, double %272
  %275 = fmul double %271, %257
  %276 = fcmp oeq double %271, 0.000000e+00
  %277 = select i1 %276, double 0.000000e+00, double %275
  %278 = fadd double %274, %277
  %279 = fadd double %258, %240
  %280 = fmul double 1.000000e+00, %268
  %281 = fmul double 1.000000e+00, %278
  %282 = fcmp oeq double %26, 1.000000e+00
  %283 = xor i1 %282, true
  %284 = fcmp olt double 0.000000e+00, %31
  %285 = and i1 %283, %284
  %286 = select i1 %285, double %31, double 2.500000e-01
  %287 = fmul double %279, %286
  %288 = fmul double %286, %280
  %289 = fmul double %286, %281
  %290 = select i1 %252, double 1.000000e+00, double 0.000000e+00
  %291 = icmp eq ptr addrspace(1) %loss, null
  %292 = xor i1 %291, true
  br i1 %292, label %when, label %join4

when:                                             ; preds = %join3
  %293 = fptrunc double %287 to float
  %294 = getelementptr float, ptr addrspace(1) %loss, i64 %5
  store float %293, ptr addrspace(1) %294, align 4
  br label %join4

join4:                                            ; preds = %when, %join3
  %295 = icmp eq ptr addrspace(1) %grad_logprob, null
  %296 = xor i1 %295, true
  br i1 %296, label %when5, label %join6

when5:                                            ; preds = %join4
  %297 = fptrunc double %289 to float
  %298 = getelementptr float, ptr addrspace(1) %grad_logprob, i64 %5
  store float %297, ptr addrspace(1) %298, align 4
  br label %join6

join6:                                            ; preds = %when5, %join4
  %299 = icmp eq ptr addrspace(1) %grad_entropy, null
  %300 = xor i1 %299, true
  br i1 %300, label %when7, label %join8

when7:                                            ; preds = %join6
  %301 = fptrunc double %288 to float
  %302 = getelementptr float, ptr addrspace(1) %grad_entropy, i64 %5
  store float %301, ptr addrspace(1) %302, align 4
  br label %join8

join8:                                            ; preds = %when7, %join6
  %303 = mul i64 %n, 0
  %304 = add i64 %303, %5
  %305 = icmp eq ptr addrspace(1) %metrics, null
  %306 = xor i1 %305, true
  br i1 %306, label %when9, label %join10

when9:                                            ; preds = %join8
  %307 = fptrunc double %290 to float
  %308 = getelementptr float, ptr addrspace(1) %metrics, i64 %304
  store float %307, ptr addrspace(1) %308, align 4
  br label %join10

join10:                                           ; preds = %when9, %join8
  %309 = add i64 %n, %5
  %310 = icmp eq ptr addrspace(1) %metrics, null
  %311 = xor i1 %310, true
  br i1 %311, label %when11, label %join12

when11:                                           ; preds = %join10
  %312 = fptrunc double %99 to float
  %313 = getelementptr float, ptr addrspace(1) %metrics, i64 %309
  store float %312, ptr addrspace(1) %313, align 4
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
